-- complete records a response for the owner of a claim.
--
-- ARGV  1 and from byte 25 on fingerprint, token, 'd' or 'e' for the state; 2 the response
--
-- Returns  'K' recorded, now or before; 'L' the claim is lost.
local record = redis.call('HMGET', key, 'm', 'w')
local m, token, state = record[1], string.sub(ARGV[1], 41, 48), string.sub(ARGV[1], 49)
local owner
if m and string.sub(m, 26, 33) == token then
	if string.sub(m, 1, 1) ~= 'c' and held(m) then
		-- Done. It is written again, so that a WAIT that follows waits for it.
		redis.call('HSET', key, 'm', m)
		return 'K'
	end
	owner = string.sub(m, 10, 41)
elseif m and held(m) then
	return 'L'
else
	owner = string.sub(ARGV[1], 25, 48) .. (m and highest(m, token) or token)
end
m = state .. NOBODY .. owner .. struct.pack('>I8I8', now, now + long)
redis.call('HSET', key, 'm', m, 'b', ARGV[2])
redis.call('PEXPIRE', key, stay)
wake(record[2])
return 'K'
