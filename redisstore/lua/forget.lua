-- forget frees the key, whoever holds it.
--
-- ARGV  1 and from byte 33 on a nonce
--
-- Returns  'K' freed, by this nonce perhaps for the second time; 'N' there was nothing.
local m, nonce = redis.call('GET', key), string.sub(ARGV[1], 33)
if m and string.sub(m, 1, 9) == 'f' .. nonce then
	again(m)
	return 'K'
end
if not m or not held(m) then
	return 'N'
end
free(m, nonce)
return 'K'
