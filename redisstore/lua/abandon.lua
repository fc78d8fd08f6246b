-- abandon frees the key if its owner says so.
--
-- ARGV  1 and from byte 25 on 't' and token; or 'n' and the nonce of a Begin that does not know whether it was granted
--       a claim
--
-- Returns  'K' the claim holds the key no more; 'L' the claim is lost; 'N' there is no claim with the nonce.
local record = redis.call('HMGET', key, 'm', 'w')
local m, kind = record[1], string.sub(ARGV[1], 25, 25)
if m then
	local at = kind == 't' and 26 or 2
	if string.sub(m, at, at + 7) == string.sub(ARGV[1], 26) then
		if string.sub(m, 1, 1) == 'c' then
			free(m)
			wake(record[2])
		end
		return 'K'
	end
	if at == 26 and held(m) then
		return 'L'
	end
end
return kind == 't' and 'K' or 'N'
