-- begin claims the key or says what became of it.
--
-- ARGV  1 and from byte 33 on nonce and fingerprint; 2 the channel on which to tell when something happens to the key,
--       if somebody waits
--
-- Returns  'c...'        the first 57 bytes of the record: the claim is granted, to this nonce perhaps for the second
--                        time
--          the record    'd...' or 'e...': done
--          'M'           another fingerprint
--          'P' and '>I8' in progress, for so many µs
--          'U'           unknown
--          'O'           this nonce has the claim, but there is no room to write it again
--          '?'           what is there is no record
local m = redis.call('GET', key)
local state = m and string.sub(m, 1, 1)
if state == 'd' then
	-- The most frequent case by far needs no clock.
	if string.sub(m, 10, 25) ~= string.sub(ARGV[1], 41) then
		return 'M'
	end
	return m
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local long, unknown, stay = struct.unpack('>I8I8s', ARGV[1])
local token, last, waiting, again = now, now, '', false
if m then
	if #m < 57 or not string.find('cef', state, 1, true) then
		return '?'
	end
	if state == 'f' and string.sub(m, 2, 9) == string.sub(ARGV[1], 33, 40) then
		return '?' -- a late try: its claim was granted, and given up since
	end
	local till = struct.unpack('>I8', m, 50)
	if state == 'c' then
		waiting = string.sub(m, 58)
	elseif state == 'e' then
		-- As ends of owner.lua has it. To make that function here would take a while of each new key's time.
		local seconds, micros = string.match(m, '^(%d+)%.(%d+)', 50)
		till = seconds * 1000000 + micros + struct.unpack('>I8', m, 42)
	end
	if state == 'c' and string.sub(m, 2, 9) == string.sub(ARGV[1], 33, 40) then
		-- The reply to an earlier try was lost. The record is written again, so that a WAIT that follows
		-- waits for the claim too.
		if till > now + long then -- or this try is late, and the owner has extended its lease
			redis.pcall('SET', key, m, 'KEEPTTL')
			return string.sub(m, 1, 57)
		end
		token, last = struct.unpack('>I8I8', m, 26)
		again = true
	elseif state == 'e' and now < till or state == 'c' and now < till + unknown then
		if string.sub(m, 10, 25) ~= string.sub(ARGV[1], 41) then
			return 'M'
		end
		if state == 'e' then
			return m
		end
		if now >= till then
			return 'U'
		end
		-- Some hundred instances at most. The others, and those that a full server has no room for, do without.
		if ARGV[2] and #waiting < 16384 and not string.find(waiting, ARGV[2], 1, true) then
			redis.pcall('APPEND', key, ARGV[2] .. ' ')
		end
		return 'P' .. struct.pack('>I8', till - now)
	else
		token = math.max(now, struct.unpack('>I8', m, 34) + 1)
		last = token
	end
end
m = 'c' .. string.sub(ARGV[1], 33) .. struct.pack('>I8I8I8I8', token, last, now, now + long)
local set = redis.pcall('SET', key, m .. waiting, 'PX', stay)
if set.err then
	return again and 'O' or set
end
return m
