-- What scripts share that change a record for its owner or an operator.
-- NOBODY is the nonce of what no call that comes twice may take for its own doing.
local NOBODY = '\0\0\0\0\0\0\0\0'

-- ends returns until when a claim or a response counts; nil if that cannot be told.
local function ends(m)
	if string.sub(m, 1, 1) == 'c' then
		return (struct.unpack('>I8', m, 50))
	end
	local seconds, micros = string.match(m, '^(%d+)%.(%d+)', 50)
	return seconds and seconds * 1000000 + micros + struct.unpack('>I8', m, 42)
end

-- held tells whether the key is taken: by a response, or by a claim whose lease runs or that leaves it unknown.
local function held(m)
	local state = string.sub(m, 1, 1)
	return state == 'd' or state == 'e' and now < ends(m) or state == 'c' and now < ends(m) + unknown
end

-- highest returns the highest token granted, of a record and another token.
local function highest(m, token)
	local last = string.sub(m, 34, 41)
	if struct.unpack('>I8', token) > struct.unpack('>I8', last) then
		return token
	end
	return last
end

-- waiting returns the channels of the instances with callers that wait.
local function waiting(m)
	if m and string.sub(m, 1, 1) == 'c' then
		return string.sub(m, 58)
	end
	return ''
end

-- put makes m the record.
local function put(m)
	redis.call('SET', key, m, 'PX', stay)
end

-- wake tells instances, each on its own channel, to look at the key. It is a hint: where the user may not publish,
-- callers look by themselves a little later.
local function wake(channels)
	for channel in string.gmatch(channels, '%S+') do
		redis.pcall('PUBLISH', channel, key)
	end
end

-- again writes m, which is the record already, so that a WAIT that follows waits for it.
local function again(m)
	redis.call('SET', key, m, 'KEEPTTL')
end

-- free leaves nothing but who may still come back, and the tokens.
local function free(m, nonce)
	put('f' .. nonce .. string.sub(m, 10, 49) .. NOBODY)
	wake(waiting(m))
end
