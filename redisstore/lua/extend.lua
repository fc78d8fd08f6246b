-- extend moves the end of an owner's lease.
--
-- ARGV  1 and from byte 25 on fingerprint and token
--
-- Returns  'K' moved; 'L' the claim is lost or completed.
local record = redis.call('HMGET', key, 'm', 'w')
local m, owner, token = record[1], string.sub(ARGV[1], 25), string.sub(ARGV[1], 41)
local nonce, since, till = NOBODY, now, now + long
local last, sooner = token, false
if m then
	if string.sub(m, 1, 1) == 'c' and string.sub(m, 26, 33) == token then
		nonce, owner = string.sub(m, 2, 9), string.sub(m, 10, 33)
		local before
		since, before = struct.unpack('>I8I8', m, 42)
		sooner = till < before
	elseif held(m) then
		return 'L'
	else
		redis.call('HDEL', key, 'b')
	end
	last = highest(m, token)
end
redis.call('HSET', key, 'm', 'c' .. nonce .. owner .. last .. struct.pack('>I8I8', since, till))
redis.call('PEXPIRE', key, stay)
if sooner then
	-- Who waits sleeps until the end that there was.
	wake(record[2])
end
return 'K'
