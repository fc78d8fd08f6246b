-- forget frees the key of the record that was looked at, claim or response.
--
-- ARGV  1 and from byte 33 on a nonce and the record's token
--
-- Returns  'K' freed, by this nonce perhaps for the second time; 'N' there is nothing; 'L' the token is another one.
local m, nonce = redis.call('GET', key), string.sub(ARGV[1], 33, 40)
if m and string.sub(m, 1, 9) == 'f' .. nonce then
	again(m)
	return 'K'
end
if not m or not held(m) then
	return 'N'
end
if string.sub(m, 26, 33) ~= string.sub(ARGV[1], 41) then
	return 'L'
end
free(m, nonce)
return 'K'
