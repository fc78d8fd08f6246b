-- begin claims the key or says what became of it.
--
-- ARGV  1 and from byte 25 on nonce and fingerprint; 2 the channel on which to tell when something happens to the key,
--       if somebody waits
--
-- Returns  m             'c...': the claim is granted, to this nonce perhaps for the second time
--          m and b       'd...' or 'e...': done
--          'M'           another fingerprint
--          'P' and '>I8' in progress, for so many µs
--          'U'           unknown
local record = redis.call('HMGET', key, 'm', 'b')
local m = record[1]
local state = m and string.sub(m, 1, 1)
if state == 'd' then
	-- The most frequent case by far needs no clock.
	if string.sub(m, 10, 25) ~= string.sub(ARGV[1], 33) then
		return 'M'
	end
	return m .. record[2]
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local long, unknown, stay = struct.unpack('>I8I8I8', ARGV[1])
local token, last = now, now
if m then
	local till = struct.unpack('>I8', m, 50)
	if state == 'c' and string.sub(m, 2, 9) == string.sub(ARGV[1], 25, 32) then
		-- The reply to an earlier try was lost. The record is written again, so that a WAIT that follows
		-- waits for the claim too.
		token, last = struct.unpack('>I8I8', m, 26)
	elseif state == 'e' and now < till or state == 'c' and now < till + unknown then
		if string.sub(m, 10, 25) ~= string.sub(ARGV[1], 33) then
			return 'M'
		end
		if state == 'e' then
			return m .. record[2]
		end
		if now >= till then
			return 'U'
		end
		if ARGV[2] then
			local waiting = redis.call('HGET', key, 'w') or ''
			-- Some hundred instances at most. The others, and those that a full server has no room for, do without.
			if #waiting < 16384 and not string.find(waiting, ARGV[2], 1, true) then
				redis.pcall('HSET', key, 'w', waiting .. ARGV[2] .. ' ')
			end
		end
		return 'P' .. struct.pack('>I8', till - now)
	else
		token = math.max(now, struct.unpack('>I8', m, 34) + 1)
		last = token
		if state == 'e' then
			redis.call('HDEL', key, 'b')
		end
	end
end
m = 'c' .. string.sub(ARGV[1], 25) .. struct.pack('>I8I8I8I8', token, last, now, now + long)
redis.call('HSET', key, 'm', m)
redis.call('PEXPIRE', key, stay)
return m
