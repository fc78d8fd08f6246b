package fasthttpidem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
	"github.com/seed-5bb5eb37/idem/internal/tenure"
)

// Config says how [New] guards handlers. Scope is required; everything else may be left zero.
type Config struct {
	// Scope returns whom the request's key belongs to: the principal that was authenticated, a tenant.
	// Two principals may use the same key and never see each other's responses. What it returns must be a
	// copy, since fasthttp uses the memory of a request again. If it fails with a [*httpidem.Problem] that is
	// the answer (401, 403 or 400, say), with any other error the answer is 401. [ScopeHeader] and
	// [SharedScope] return such functions.
	Scope func(*fasthttp.RequestCtx) (string, error)

	// Fingerprint returns a digest of what makes two requests the same. It must not change or keep body,
	// which is nil for a form in parts (multipart/form-data). If it fails with a [*httpidem.Problem] that is
	// the answer, with any other error the answer is 400. Nil means method, path, raw query and the bytes of
	// the body, or the fields and files of a form; see also [FingerprintJSON].
	Fingerprint func(ctx *fasthttp.RequestCtx, body []byte) (idem.Fingerprint, error)

	// Policy decides by the status of the handler's answer what becomes of the key. Nil means
	// [httpidem.DefaultPolicy]; see also [httpidem.StoreAll] and [httpidem.HoldAmbiguous].
	Policy func(status int) httpidem.Action

	// Header is the name of the field that carries the key. Empty means [httpidem.DefaultHeader].
	Header string

	// Optional lets requests without the field pass as if there were no middleware. Otherwise they are
	// answered 400.
	Optional bool

	// FailOpen runs the handler without protection when the store is full or down. Otherwise such a
	// request is answered 503, and in any case one whose first attempt is known to run.
	FailOpen bool

	// MaxRequestBytes is the length up to which the body of a request is taken. Zero means 1 MiB. The
	// server has a limit of its own, MaxRequestBodySize, which comes first.
	MaxRequestBytes int

	// MaxResponseBytes is the length up to which the body of a response is kept. Zero means 1 MiB. What
	// the store takes may be less; its limit is for header and body together.
	MaxResponseBytes int

	// Wait is how long a duplicate waits for the first request to be answered, before it is told to come
	// back. Zero means not at all. Fasthttp does not tell when a client leaves, so that one which has left
	// keeps its place for that long.
	Wait time.Duration

	// StoreTimeout is how long a store that is not in this process may take to answer before the request is
	// treated as if it were down. While a duplicate waits it does not count. Zero means 5 seconds; a store has
	// as long as it takes if it is negative.
	StoreTimeout time.Duration

	// MaxRun is how long a handler may run, after which [Operation.Context] ends with
	// [context.DeadlineExceeded]. Zero means 5 minutes.
	MaxRun time.Duration

	// KeepHeader decides whether a field of a response, or a trailer, is recorded; its name is in
	// canonical form. Fields that are about the connection are never recorded. Nil means
	// [httpidem.DefaultKeepHeader], which a function may call for the fields that it doesn't know.
	KeepHeader func(name string) bool

	// Redact may change header and body of a copy of the response, of which the record is made then. The first
	// client gets the response as it was.
	Redact func(*fasthttp.Response)

	// DocsURL is where the API's documentation explains the answers of the middleware. It is an absolute
	// URL without a fragment. Empty means that they don't refer to any.
	DocsURL string

	// ErrorHandler writes the answers of the middleware's own; Retry-After and Link are set already. Nil
	// means that they are written as application/problem+json, by [WriteProblem].
	ErrorHandler func(*fasthttp.RequestCtx, *httpidem.Problem)

	// Context returns a context whose values the store sees, and a handler in [Operation.Context]: of a trace,
	// say. Its end ends the wait for the store and for another request, and not a handler that runs. It must not
	// be the RequestCtx itself, which is another request's soon after. Nil means [context.Background].
	Context func(*fasthttp.RequestCtx) context.Context

	// Logger is told what no client can see: that the store fails, and that a claim was lost. Nil means
	// nobody is. Keys are not logged.
	Logger *slog.Logger
}

// New returns a middleware that runs a handler once per key. It guards the methods POST, PUT, PATCH and
// DELETE, and lets others pass. It may be put around any number of handlers, which then share the keys:
// the path is part of what makes two requests the same.
//
// It fails if conf has no Scope, or a value that is negative or malformed.
func New(store idem.Store, conf Config) (func(fasthttp.RequestHandler) fasthttp.RequestHandler, error) {
	if store == nil {
		return nil, errors.New("fasthttpidem: no store")
	}
	if err := conf.validate(); err != nil {
		return nil, err
	}
	g := &guard{conf: conf.withDefaults()}
	g.asker = tenure.NewAsker(store, g.conf.Wait, g.conf.StoreTimeout)
	return func(next fasthttp.RequestHandler) fasthttp.RequestHandler {
		return func(ctx *fasthttp.RequestCtx) { g.serve(next, ctx) }
	}, nil
}

func (c *Config) validate() error {
	switch {
	case c.Scope == nil:
		return errors.New("fasthttpidem: Config.Scope is missing: a key belongs to somebody")
	case c.Header != "" && !httpwire.IsToken(c.Header):
		return fmt.Errorf("fasthttpidem: Config.Header is not the name of a header field: %q", c.Header)
	case c.DocsURL != "" && !httpwire.IsDocsURL(c.DocsURL):
		return fmt.Errorf("fasthttpidem: Config.DocsURL is not an absolute URL without a fragment: %q", c.DocsURL)
	}
	return httpwire.CheckLimits("fasthttpidem", c.MaxRequestBytes, c.MaxResponseBytes, c.Wait, c.MaxRun)
}

func (c *Config) withDefaults() Config {
	conf := *c
	conf.Header = cmp.Or(conf.Header, httpidem.DefaultHeader)
	conf.MaxRequestBytes = cmp.Or(conf.MaxRequestBytes, 1<<20)
	conf.MaxResponseBytes = cmp.Or(conf.MaxResponseBytes, 1<<20)
	conf.StoreTimeout = cmp.Or(conf.StoreTimeout, 5*time.Second)
	conf.MaxRun = cmp.Or(conf.MaxRun, 5*time.Minute)
	conf.Logger = cmp.Or(conf.Logger, slog.New(slog.DiscardHandler))
	if conf.Policy == nil {
		conf.Policy = httpidem.DefaultPolicy
	}
	if conf.KeepHeader == nil {
		conf.KeepHeader = httpidem.DefaultKeepHeader
	}
	if conf.ErrorHandler == nil {
		conf.ErrorHandler = WriteProblem
	}
	if conf.Context == nil {
		conf.Context = func(*fasthttp.RequestCtx) context.Context { return context.Background() }
	}
	return conf
}
