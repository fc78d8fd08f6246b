-- forget frees the key, whoever holds it.
--
-- Returns  'K' freed; 'N' there was nothing.
local record = redis.call('HMGET', key, 'm', 'w')
local m = record[1]
if not m or not held(m) then
	return 'N'
end
free(m)
wake(record[2])
return 'K'
