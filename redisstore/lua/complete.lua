-- complete records a response for the owner of a claim. It does without the functions of owner.lua, since making them
-- takes longer than all else that is done here.
--
-- ARGV  1 and from byte 33 on fingerprint, token, 'd' or 'e' for the state; 2 the response
--
-- Returns  'K' recorded, now or before; 'L' the claim is lost.
local m, token = redis.call('GET', key), string.sub(ARGV[1], 49, 56)
local state = m and string.sub(m, 1, 1)
local mine = m and string.sub(m, 26, 33) == token
local owner
if mine and state == 'c' then
	owner = string.sub(m, 10, 41)
else
	owner = string.sub(ARGV[1], 33, 56) .. token
	if m then
		local last, _, till = struct.unpack('>I8I8I8', m, 34)
		if state == 'd' or state == 'e' and now < till or state == 'c' and now < till + unknown then
			if mine then
				-- Done. It is written again, so that a WAIT that follows waits for it.
				redis.call('SET', key, m, 'KEEPTTL')
			end
			return mine and 'K' or 'L'
		end
		if last > struct.unpack('>I8', token) then
			owner = string.sub(ARGV[1], 33, 56) .. string.sub(m, 34, 41)
		end
	end
end
local done = string.sub(ARGV[1], 57) .. '\0\0\0\0\0\0\0\0' .. owner .. struct.pack('>I8I8', now, now + long) .. ARGV[2]
redis.call('SET', key, done, 'PX', stay)
if state == 'c' and #m > 57 then
	for channel in string.gmatch(string.sub(m, 58), '%S+') do
		redis.pcall('PUBLISH', channel, key)
	end
end
return 'K'
