-- now is the time by this server's clock, in µs, and stamp the same as responses carry it.
local time = redis.call('TIME')
local now, stamp = time[1] * 1000000 + time[2], time[1] .. '.' .. time[2]
local long, unknown, stay = struct.unpack('>I8I8s', ARGV[1])
