package fasthttpidem_test

import (
	"bufio"
	"fmt"
	"net"

	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttputil"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
)

// A payment that is sent twice is made once.
func ExampleNew() {
	engine, err := idem.New(idem.Config{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = engine.Close() }()
	idempotent, err := fasthttpidem.New(engine, fasthttpidem.Config{
		Scope: fasthttpidem.ScopeHeader("Authorization"), // a key belongs to a principal
	})
	if err != nil {
		panic(err)
	}
	charges := 0
	post := serveExample(idempotent(func(ctx *fasthttp.RequestCtx) {
		charges++
		ctx.SetStatusCode(fasthttp.StatusCreated)
		fmt.Fprintf(ctx, `{"id":%d}`, charges)
	}))
	for range 2 {
		resp := post("order-7")
		fmt.Printf("%d %s replayed=%q\n", resp.StatusCode(), resp.Body(), resp.Header.Peek("Idempotency-Replayed"))
	}
	// Output:
	// 201 {"id":1} replayed=""
	// 201 {"id":1} replayed="true"
}

// What the handler calls gets the operation's context and, where it can compare, the claim's token: of two handlers that
// both think they have the claim the older is shut out.
func ExampleFromContext() {
	engine, err := idem.New(idem.Config{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = engine.Close() }()
	idempotent, err := fasthttpidem.New(engine, fasthttpidem.Config{Scope: fasthttpidem.SharedScope})
	if err != nil {
		panic(err)
	}
	ledger := map[string]uint64{} // the highest token by account
	post := serveExample(idempotent(func(ctx *fasthttp.RequestCtx) {
		op, _ := fasthttpidem.FromContext(ctx)
		if op.Context().Err() != nil || op.Claim().Token < ledger["alice"] {
			ctx.SetStatusCode(fasthttp.StatusConflict)
			return
		}
		ledger["alice"] = op.Claim().Token
		ctx.SetStatusCode(fasthttp.StatusNoContent)
	}))
	fmt.Println(post("order-7").StatusCode(), ledger["alice"] > 0)
	// Output: 204 true
}

// serveExample serves the handler in memory, and returns a client that sends it payments.
func serveExample(handler fasthttp.RequestHandler) (post func(key string) *fasthttp.Response) {
	listener := fasthttputil.NewInmemoryListener()
	go func() { _ = fasthttp.Serve(listener, handler) }()
	return func(key string) *fasthttp.Response {
		conn, err := listener.Dial()
		if err != nil {
			panic(err)
		}
		defer func() { _ = conn.Close() }()
		return sendExample(conn, key)
	}
}

func sendExample(conn net.Conn, key string) *fasthttp.Response {
	var req fasthttp.Request
	req.Header.SetMethod(fasthttp.MethodPost)
	req.SetRequestURI("http://pay.example/payments")
	req.Header.Set("Authorization", "Bearer alice")
	req.Header.Set("Idempotency-Key", key)
	req.SetBodyString(`{"amount":1250}`)
	w := bufio.NewWriter(conn)
	if err := req.Write(w); err != nil {
		panic(err)
	}
	if err := w.Flush(); err != nil {
		panic(err)
	}
	resp := new(fasthttp.Response)
	if err := resp.Read(bufio.NewReader(conn)); err != nil {
		panic(err)
	}
	return resp
}
