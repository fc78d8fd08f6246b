-- resolve records a response in the owner's stead, under a token of its own.
--
-- ARGV  1 and from byte 33 on 'd' or 'e' for the state, a nonce, and the token of the claim that was looked at; 2 the
--       response
--
-- Returns  'K' recorded, by this nonce perhaps for the second time; 'N' nothing is in progress or unknown; 'L' the token
--          is another one.
local m, head = redis.call('GET', key), string.sub(ARGV[1], 33, 41)
if m and string.sub(m, 1, 9) == head then
	again(m)
	return 'K'
end
if not m or string.sub(m, 1, 1) ~= 'c' or not held(m) then
	return 'N'
end
if string.sub(m, 26, 33) ~= string.sub(ARGV[1], 42) then
	return 'L'
end
local token = math.max(now, struct.unpack('>I8', m, 34) + 1)
put(head .. string.sub(m, 10, 25) .. struct.pack('>I8I8I8', token, token, long) .. stamp .. ARGV[2])
wake(waiting(m))
return 'K'
