-- abandon frees the key if its owner says so.
--
-- ARGV  1 and from byte 33 on 't' and token; or 'n' and the nonce of a Begin that does not know whether it was granted
--       a claim
--
-- Returns  'K' the claim holds the key no more; 'L' the claim is lost; 'N' there is no claim with the nonce.
local m, kind = redis.call('GET', key), string.sub(ARGV[1], 33, 33)
if m then
	local at, claimed = kind == 't' and 26 or 2, string.sub(m, 1, 1) == 'c'
	-- The nonce of what is no claim is not that of a Begin.
	if string.sub(m, at, at + 7) == string.sub(ARGV[1], 34) and (claimed or kind == 't') then
		if claimed then
			free(m, string.sub(m, 2, 9)) -- by which a try of its Begin that is late knows that it is
		end
		return 'K'
	end
	if at == 26 and held(m) then
		return 'L'
	end
end
return kind == 't' and 'K' or 'N'
