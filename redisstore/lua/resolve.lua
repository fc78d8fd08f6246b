-- resolve records a response in the owner's stead, under a token of its own.
--
-- ARGV  1 and from byte 25 on 'd' or 'e' for the state; 2 the response
--
-- Returns  'K' recorded; 'N' nothing is in progress or unknown.
local record = redis.call('HMGET', key, 'm', 'w')
local m = record[1]
if not m or string.sub(m, 1, 1) ~= 'c' or not held(m) then
	return 'N'
end
local token = math.max(now, struct.unpack('>I8', m, 34) + 1)
m = string.sub(ARGV[1], 25) .. NOBODY .. string.sub(m, 10, 25) .. struct.pack('>I8I8I8I8', token, token, now, now + long)
redis.call('HSET', key, 'm', m, 'b', ARGV[2])
redis.call('PEXPIRE', key, stay)
wake(record[2])
return 'K'
