-- extend moves the end of an owner's lease.
--
-- ARGV  1 and from byte 33 on fingerprint and token
--
-- Returns  'K' moved; 'L' the claim is lost or completed.
local m, owner, token = redis.call('GET', key), string.sub(ARGV[1], 33), string.sub(ARGV[1], 49)
local nonce, since, till = NOBODY, now, now + long
local last, stays, woken = token, waiting(m), ''
if m then
	if string.sub(m, 1, 1) == 'c' and string.sub(m, 26, 33) == token then
		nonce, owner = string.sub(m, 2, 9), string.sub(m, 10, 33)
		local before
		since, before = struct.unpack('>I8I8', m, 42)
		if till < before then
			-- Who waits sleeps until the end that there was.
			stays, woken = '', stays
		end
	elseif held(m) then
		return 'L'
	end
	last = highest(m, token)
end
put('c' .. nonce .. owner .. last .. struct.pack('>I8I8', since, till) .. stays)
wake(woken)
return 'K'
