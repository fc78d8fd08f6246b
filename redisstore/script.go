package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1; nothing is kept safe by it
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"
)

// allowOOM is the first line of scripts that a server runs although its memory is full: the operation was done, and
// must not be done again because there is no room to say so. Redis before 7.0 takes the line for an error in the
// script.
const allowOOM = "#!lua flags=allow-oom\n"

// The parts of the scripts; each has a header that names its arguments and replies.
var (
	//go:embed lua/record.lua
	recordLua string
	//go:embed lua/clock.lua
	clockLua string
	//go:embed lua/owner.lua
	ownerLua string
	//go:embed lua/quick.lua
	quickLua string
	//go:embed lua/begin.lua
	beginLua string
	//go:embed lua/complete.lua
	completeLua string
	//go:embed lua/abandon.lua
	abandonLua string
	//go:embed lua/extend.lua
	extendLua string
	//go:embed lua/forget.lua
	forgetLua string
	//go:embed lua/resolve.lua
	resolveLua string
	//go:embed lua/lookup.lua
	lookupLua string
)

// A Script is a text in Lua that a server runs as one step. It takes one key and returns one string.
type Script struct {
	Text string
	SHA  string // the name by which a server that has seen the text knows it
}

func newScript(text string) *Script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	return &Script{Text: text, SHA: hex.EncodeToString(sum[:])}
}

// An action is what the store does by one script.
type action struct {
	name  string
	plain *Script
	full  *Script // the same with allowOOM; nil: the action needs room or writes nothing
}

// asking is an action that leaves records alone, or claims what it finds free.
func asking(name string, parts ...string) *action {
	return &action{name: name, plain: newScript(compact(recordLua + strings.Join(parts, "")))}
}

// settling is an action of who has a key, or acts for who has.
func settling(name string, parts ...string) *action {
	text := compact(recordLua + strings.Join(parts, ""))
	return &action{name: name, plain: newScript(text), full: newScript(allowOOM + text)}
}

// compact drops the lines that are comments: they are for people, and would be sent and kept with the script.
func compact(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if code := strings.TrimSpace(line); code != "" && !strings.HasPrefix(code, "--") {
			b.WriteString(code)
			b.WriteByte('\n')
		}
	}
	return b.String()
}

var (
	begin    = asking("begin", beginLua) // it needs no clock to replay
	lookup   = asking("lookup", clockLua, ownerLua, lookupLua)
	complete = settling("complete", quickLua, clockLua, ownerLua, completeLua)
	abandon  = settling("abandon", clockLua, ownerLua, abandonLua)
	extend   = settling("extend", clockLua, ownerLua, extendLua)
	forget   = settling("forget", clockLua, ownerLua, forgetLua)
	resolve  = settling("resolve", clockLua, ownerLua, resolveLua)
)

// run has r run the script of an action. The one for servers that are full is not run but on them: it costs more, and
// not all servers take it.
func run(ctx context.Context, r Runner, a *action, key string, args ...string) (string, error) {
	text, err := reply(r.Run(ctx, a.plain, key, args...))
	if a.full == nil || !isOOM(err) {
		return text, err
	}
	text, again := reply(r.Run(ctx, a.full, key, args...))
	if again != nil {
		return "", fmt.Errorf("%w; and then: %w", err, again)
	}
	return text, nil
}

// isOOM reports whether a server refused to write because its memory is full. Redis 6 has more words around it.
func isOOM(err error) bool {
	return err != nil && strings.Contains(err.Error(), "OOM command not allowed")
}

// reply refuses the one string that no script returns.
func reply(text string, err error) (string, error) {
	if err == nil && text == "" {
		return "", fmt.Errorf("%w: it is empty", errReply)
	}
	return text, err
}
