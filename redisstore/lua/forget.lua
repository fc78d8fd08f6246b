-- forget frees the key, whoever holds it.
--
-- Returns  'K' freed; 'N' there was nothing.
local m = redis.call('GET', key)
if not m or not held(m) then
	return 'N'
end
free(m)
return 'K'
