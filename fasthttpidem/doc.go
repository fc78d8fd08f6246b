// Package fasthttpidem makes requests to a fasthttp server that clients retry take effect once. It is what package
// httpidem is for net/http, and does not go through net/http's types: on fasthttp a handler stays as fast as it was.
//
//	engine, err := idem.New(idem.Config{})
//	...
//	idempotent, err := fasthttpidem.New(engine, fasthttpidem.Config{Scope: fasthttpidem.ScopeHeader("Authorization")})
//	...
//	server := &fasthttp.Server{Handler: idempotent(payments)}
//
// What a client sees is described in package httpidem: the answers and their codes are the same, and so are the
// records. Servers of both kinds can share a store, and either replays what the other has recorded. For Fiber there is
// the module fiberidem beside this one.
//
// # What a handler sees
//
// Fasthttp does not tell when a client leaves, and a RequestCtx has no context of the request's own. [FromContext] returns
// the operation, whose Context ends after Config.MaxRun, and with the cause [idem.ErrClaimLost] when the claim is
// lost.
//
// A handler that panics or ends its goroutine has not answered: the key is free again. One that returned has run. It must
// not go on in other goroutines with what has to happen once. So [fasthttp.TimeoutHandler] belongs around the
// middleware: there the client is told that it took too long, the handler goes on to its end, and a retry gets its
// answer. Inside, it returns while the handler still runs, and what is recorded is what the response happens to be by
// then. So it is with [fasthttp.RequestCtx.TimeoutError], which a handler calls after [Operation.Hold] or not at all.
//
// # Responses
//
// A response that is bytes is recorded before the server sends it. A stream that says how long it is (a file) is read
// first, if Config.MaxResponseBytes allows, and then is bytes. One that does not, of events or of what
// [fasthttp.Response.SetBodyStreamWriter] writes, goes to the client as it comes. It is recorded when it ends,
// before the client hears of the end, and until then the request is in progress: what writes it is part of the
// operation, for which the client's leaving does not end it either. If it can't be recorded the connection is closed,
// so that the client does not take it for complete. After Config.MaxRun a stream is closed, and the outcome of
// its operation is unknown. A connection that is hijacked is nobody's but the handler's: that it ran is recorded, as status
// 101.
//
// # Requests
//
// A request is its method, path, raw query and body. A form in parts (multipart/form-data), which fasthttp parses as it
// comes in, is its fields and files, in whatever boundaries they were sent. Net/http's middleware has the bytes there: a
// form must not be retried with the one that was first sent to the other.
//
// With the server's StreamRequestBody the body is read before the handler runs, up to Config.MaxRequestBytes, and the
// handler has a stream all the same. A form that the server has not parsed by then is its bytes there.
//
// Nothing around the middleware may read from a body that is streamed, nor close it: two requests would look the same of
// which nobody sees what is different. One that was is refused with 400 request_invalid if it has a Content-Length.
//
// # Where to put it
//
// Around it belongs what must be asked for every single request, replays as well: authentication,
// authorisation, rate limits, logging, CORS, timeouts. Fields that these set in the response are left out of the
// record unless the handler changed them. Inside belongs what makes the result: validation, compression.
package fasthttpidem
