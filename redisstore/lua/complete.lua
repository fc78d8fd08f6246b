-- complete records a response for the owner of a claim.
--
-- ARGV  1 and from byte 33 on what the record begins with, 49 bytes, where no token is higher than the owner's; 2 the
--       response
--
-- Returns  'K' recorded, now or before; 'L' the claim is lost.
local token, state = string.sub(head, 26, 33), m and string.sub(m, 1, 1)
local mine = m and string.sub(m, 26, 33) == token
if mine and state == 'c' then
	head = string.sub(head, 1, 9) .. string.sub(m, 10, 41) .. string.sub(head, 42)
elseif m and held(m) then
	if mine then
		again(m)
	end
	return mine and 'K' or 'L'
elseif m then
	head = string.sub(head, 1, 33) .. highest(m, token) .. string.sub(head, 42)
end
put(head .. stamp .. ARGV[2])
wake(waiting(m))
return 'K'
