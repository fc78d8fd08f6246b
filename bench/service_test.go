package bench_test

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// A service is one HTTP API, guarded or not, on the server that its library belongs to. Its one operation
// is POST /payments: it reads the request and answers 201 with two header fields and the body that
// [newAnswer] makes, which names the request's key. So a caller sees whether an answer is to its request.
type service interface {
	// listen starts the service on the loopback interface, and returns host and port.
	listen(tb testing.TB) string

	// call handles one request without a network, and returns an answer that is valid until the next
	// call. It may not be called by several goroutines at a time.
	call(key []byte) (status int, body []byte)

	// runs is how often the handler ran.
	runs() int64

	// close ends what listen started, and the store.
	close(tb testing.TB)
}

// subjects are what is compared. Those without a store are the handler alone, so that a server's own cost
// can be told from the middleware's.
var subjects = []struct {
	name    string
	guarded bool
	start   func(tb testing.TB, ttl time.Duration) service
}{
	{"store=none/lib=net_http", false, startNetHTTP},
	{"store=memory/lib=httpidem", true, startHTTPIdem},
	{"store=none/lib=fiber", false, startFiberBare},
	{"store=memory/lib=fiber", true, startFiber},
	{"store=memory/lib=fiberidem", true, startFiberIdem},
	{"store=none/lib=fasthttp", false, startFastHTTP},
	{"store=memory/lib=fasthttpidem", true, startFastHTTPIdem},
	{"store=memory/lib=fiber_on_net_http", true, startMounted},
}

const (
	path        = "/payments"
	keyField    = "Idempotency-Key"
	contentType = "application/json"
	location    = "/payments/1"
)

// payment is the body of every request: 300 bytes.
var payment = fmt.Appendf(nil, `{"amount":1250,"currency":"EUR","description":"%0*d"}`, 300-len(`{"amount":1250,"currency":"EUR","description":""}`), 0)

const (
	answerStart  = `{"key":"`
	answerEnd    = `","status":"created","amount":1250,"currency":"EUR"}`
	answerLength = len(answerStart) + keyLength + len(answerEnd)
)

func newAnswer(key string) []byte {
	body := make([]byte, 0, answerLength)
	return append(append(append(body, answerStart...), key...), answerEnd...)
}

// checkAnswer fails unless the handler, or who remembers what it said, answered the request with this key.
func checkAnswer(key []byte, status int, body []byte) error {
	rest, starts := bytes.CutPrefix(body, []byte(answerStart))
	rest, matches := bytes.CutPrefix(rest, key)
	if status != http.StatusCreated || !starts || !matches || string(rest) != answerEnd {
		return fmt.Errorf("not the answer to %s: %d %q", key, status, body)
	}
	return nil
}

// keyLength is the length of a UUID: fiber takes no other unless it is told to.
const keyLength = 36

// newKey returns the key with number 0.
func newKey() []byte { return []byte("01234567-89ab-4def-8123-000000000000") }

// setKey makes key the one with number n, in place.
func setKey(key []byte, n int) {
	for i := keyLength - 1; key[i] != '-'; i-- {
		key[i] = byte('0' + n%10)
		n /= 10
	}
}
