// Command instructions repeats one operation of the engine, from one goroutine. Under callgrind, which counts the
// instructions of two runs of different length, the difference is what one operation takes: a number that hardly
// depends on the machine's load. It uses nothing but the engine's oldest methods, so that it can be built with an
// older engine, too.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

const usage = "usage: instructions replay|hot|fresh|in-progress|mismatch times"

// operations prepare an engine, and return what is to be repeated.
var operations = map[string]func(*idem.Engine) func(i int){
	"replay": func(e *idem.Engine) func(int) {
		keys := done(e, 1000)
		return func(i int) { begin(e, keys[i%len(keys)], payment, idem.Replay) }
	},
	"hot": func(e *idem.Engine) func(int) {
		key := done(e, 1)[0]
		return func(int) { begin(e, key, payment, idem.Replay) }
	},
	"fresh": func(e *idem.Engine) func(int) {
		key := []byte(name(0))
		return func(i int) {
			binary.LittleEndian.PutUint64(key, uint64(i))
			complete(e, begin(e, string(key), payment, idem.Fresh))
		}
	},
	"in-progress": func(e *idem.Engine) func(int) {
		key := name(0)
		begin(e, key, payment, idem.Fresh)
		return func(int) { begin(e, key, payment, idem.InProgress) }
	},
	"mismatch": func(e *idem.Engine) func(int) {
		key := done(e, 1)[0]
		return func(int) { begin(e, key, idem.Fingerprint{1}, idem.Mismatch) }
	},
}

func main() {
	if len(os.Args) != 3 || operations[os.Args[1]] == nil {
		fail(usage)
	}
	times, err := strconv.Atoi(os.Args[2])
	if err != nil || times < 1 {
		fail(usage)
	}
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(-1)
	e, err := idem.New(idem.Config{Lease: time.Hour})
	if err != nil {
		fail(err)
	}
	operation := operations[os.Args[1]](e)
	for i := range warm + times {
		if i < warm && i%1000 == 0 {
			time.Sleep(10 * time.Millisecond) // in which the engine's own goroutine gets to know what is frequent
		}
		operation(i)
	}
}

// warm is how many operations come before those that are asked for.
const warm = 10_000

func fail(why any) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(2)
}

var (
	ctx     = context.Background()
	payment = idem.FingerprintOf([]byte("payment"))
	body    = make([]byte, 200)
	buf     = make([]byte, 0, 256)
)

// name is a key of 36 bytes, the length of a UUID.
func name(i int) string { return fmt.Sprintf("%036d", i) }

// done completes n keys and returns them.
func done(e *idem.Engine, n int) (keys []string) {
	for i := range n {
		keys = append(keys, name(i))
		complete(e, begin(e, keys[i], payment, idem.Fresh))
	}
	return keys
}

func begin(e *idem.Engine, key string, fp idem.Fingerprint, want idem.State) idem.Claim {
	out, err := e.Begin(ctx, idem.Request{Key: key, Fingerprint: fp, Buf: buf})
	if err != nil || out.State != want {
		fail(fmt.Sprintf("%s: %v, %v, want %v", key, out.State, err, want))
	}
	return out.Claim
}

func complete(e *idem.Engine, c idem.Claim) {
	if err := e.Complete(ctx, c, idem.Response{Status: 201, Body: body}); err != nil {
		fail(err)
	}
}
