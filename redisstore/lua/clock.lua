-- now is the time by this server's clock, in µs.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local long, unknown, stay = struct.unpack('>I8I8s', ARGV[1])
