-- lookup returns the record as it is.
--
-- Returns  'N' there is none; or a letter, '>I8' with what is left of the lease or the life in µs, and the record.
--          The letter: 'P' in progress, 'U' unknown, 'R' done.
local m = redis.call('GET', key)
if not m then
	return 'N'
end
local state, till = string.sub(m, 1, 1), struct.unpack('>I8', m, 50)
local letter = 'R'
if state == 'c' then
	letter = 'P'
	if now >= till then
		letter, till = 'U', till + unknown
	end
elseif state == 'd' then
	till = math.max(till, now + 1) -- the record ends with a ms
end
if state == 'f' or now >= till then
	return 'N'
end
return letter .. struct.pack('>I8', till - now) .. m
