-- quick is the case of complete that is the rule: nobody waits, and token and fingerprint are the owner's. A record of
-- 57 bytes is a claim or free, never a response. It needs no numbers, and is over before the functions of owner.lua are
-- made, which takes longer than all that it does. Otherwise complete goes on with m and head.
local m, head = redis.call('GET', key), string.sub(ARGV[1], 33)
if m and #m == 57 and string.sub(m, 10, 41) == string.sub(head, 10, 41) then
	local time, stay = redis.call('TIME'), struct.unpack('s', ARGV[1], 17)
	redis.call('SET', key, head .. time[1] .. '.' .. time[2] .. ARGV[2], 'PX', stay)
	return 'K'
end
