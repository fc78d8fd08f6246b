-- lookup returns the record as it is.
--
-- Returns  'N' there is none; '?' what is there is no record; or a letter, '>I8' with what is left of the lease or the
--          life in µs, and the record. The letter: 'P' in progress, 'U' unknown, 'R' done.
local m = redis.call('GET', key)
if not m then
	return 'N'
end
local state, letter = string.sub(m, 1, 1), 'R'
if state == 'f' then
	return 'N'
end
local till = ends(m)
if not till then
	return '?'
end
if state == 'c' then
	letter = 'P'
	if now >= till then
		letter, till = 'U', till + unknown
	end
elseif state == 'd' then
	till = math.max(till, now + 1) -- the record ends with a ms
end
if now >= till then
	return 'N'
end
return letter .. struct.pack('>I8', till - now) .. m
