// Package httpidem makes HTTP requests that clients retry take effect once. It has both sides: [New]
// returns a net/http middleware that runs a handler once per key and replays its response, and
// [Transport] is a client that sends a key and retries.
//
//	engine, err := idem.New(idem.Config{})
//	...
//	idempotent, err := httpidem.New(engine, httpidem.Config{Scope: httpidem.ScopeHeader("Authorization")})
//	...
//	mux.Handle("POST /payments", idempotent(payments))
//
// The middleware is func(http.Handler) http.Handler, so that routers take it as it is: for chi it is
// router.With(idempotent).Post("/payments", payments). It follows the draft of the IETF about the field
// Idempotency-Key, and what clients know from payment services where the draft says nothing.
//
// # What a client sees
//
// The first request with a key runs the handler. Its response is recorded, and only then sent: a client
// never holds a result that the store does not. Every further request with the key and the same content
// gets that response, byte for byte, with the additional field Idempotency-Replayed: true. Whatever else
// may be the case is answered by a [Problem], an application/problem+json with a stable code:
//
//	400 key_missing, key_invalid   the field is not there, or not one key
//	400 request_invalid            the body ended early, was read before, or has no fingerprint
//	401 scope_unknown              nobody knows whose key it is
//	409 in_progress                the first request still runs; Retry-After says how long its lease lasts
//	409 outcome_unknown            whether the first request took effect has to be found out
//	410 response_not_retained      the first request was answered; its response was too large, or streamed
//	413 request_too_large          the body is longer than Config.MaxRequestBytes
//	422 key_reused                 the key was used for a request with other content
//	503 store_unavailable          the store is full or down, or could not record the response
//
// A page of another origin has to be allowed to send and to see these fields:
//
//	Access-Control-Allow-Headers: Idempotency-Key
//	Access-Control-Expose-Headers: Idempotency-Replayed, Retry-After, Link
//
// # What a handler sees
//
// It gets the request with its body, which was read before, and a context that does not end when the
// client leaves: half an operation is worse than an answer that nobody reads. The context ends after
// Config.MaxRun, and with the cause [idem.ErrClaimLost] when the claim is lost. [FromContext] returns the
// claim and what a handler may decide about its record.
//
// A handler that panics or ends its goroutine has not answered: the key is free again. One that returned
// has run. It must not go on in other goroutines with what has to happen once, so that MaxRun is the right
// way to limit it and [http.TimeoutHandler] inside the middleware is not.
//
// The response writer has the methods that [http.ResponseController] looks for, but can't be unwrapped.
// Up to Config.MaxResponseBytes the response is held back until the handler has returned. A handler that
// flushes, or writes more, streams to its client as without the middleware, and what it wrote is kept as
// long as it is within the limit. Then the client may have the response before the store has. If it can't
// be recorded in the end the connection is aborted, so that the client does not take it for complete.
// A connection that is hijacked is nobody's but the handler's: that it ran is recorded, as status 101.
//
// # Where to put it
//
// Around it belongs what must be asked for every single request, replays as well: authentication,
// authorisation, rate limits, logging, CORS, the ids of requests. A principal who may not pay any more
// must not be told either how his payment went. Fields that these set in the response are left out of the
// record unless the handler changed them, because they will be set again. Inside belongs what makes the
// result: validation, compression.
//
// Nothing around it may read the body, and neither may Config.Scope: two requests would look the same of which
// nobody sees what is different. So a request whose body was consumed (by FormValue, say, of a form) is
// refused with 400 request_invalid, and the Logger is told. Who has to read the body there puts it back, and
// keeps ContentLength right. What can't be noticed is a body of unknown length (in chunks) that is no form.
//
// A request is its method, path, raw query and body. Behind [http.StripPrefix] two paths look the same, so
// that the middleware belongs around it, or needs a Config.Fingerprint of its own.
//
// A key belongs to whoever Config.Scope returns. Let that be the principal, and not a session or a token
// that is renewed while a client retries: to another principal the operation is another one, and runs.
//
// # What is recorded
//
// A response becomes an [idem.Response] with the status, the header in the format of HTTP/1, and the body.
// Trailers follow the header after an empty line. A line that is only a name takes away what was set under
// it: by a middleware around this one, or as a trailer before the end. A Content-Type that net/http found by sniffing is
// part of it. [DefaultKeepHeader] says which fields are not. A replay's framing is that of its own
// connection: it may have a Content-Length where the first response came in chunks.
//
// Records with both Failed and Truncated stand for an operation under [Hold].
package httpidem
