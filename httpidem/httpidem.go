package httpidem

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
	"github.com/seed-5bb5eb37/idem/internal/tenure"
)

// DefaultHeader is the name of the field that carries the key, unless a Config or a [Transport] has
// another.
const DefaultHeader = "Idempotency-Key"

// Config says how [New] guards handlers. Scope is required; everything else may be left zero.
type Config struct {
	// Scope returns whom the request's key belongs to: the principal that was authenticated, a tenant.
	// Two principals may use the same key and never see each other's responses. It is called before the
	// body is read, and must not read it: a request whose body is not there in full afterwards is answered
	// 400. If it fails with a [*Problem] that is the answer (401, 403 or 400, say), with any
	// other error the answer is 401. [ScopeHeader] and [SharedScope] return such functions.
	Scope func(*http.Request) (string, error)

	// Fingerprint returns a digest of what makes two requests the same. It must not change or keep body,
	// or read the request's own. If it fails with a [*Problem] that is the answer, with any other error
	// the answer is 400. Nil means method, path, raw query and the bytes of the body; see also
	// [FingerprintJSON].
	Fingerprint func(r *http.Request, body []byte) (idem.Fingerprint, error)

	// Policy decides by the status of the handler's answer what becomes of the key. Nil means
	// [DefaultPolicy]; see also [StoreAll] and [HoldAmbiguous].
	Policy func(status int) Action

	// Header is the name of the field that carries the key. Empty means [DefaultHeader].
	Header string

	// Optional lets requests without the field pass as if there were no middleware. Otherwise they are
	// answered 400.
	Optional bool

	// FailOpen runs the handler without protection when the store is full or down. Otherwise such a
	// request is answered 503, and in any case one whose first attempt is known to run.
	FailOpen bool

	// MaxRequestBytes is the length up to which the body of a request is taken. Zero means 1 MiB.
	MaxRequestBytes int

	// MaxResponseBytes is the length up to which the body of a response is kept. Zero means 1 MiB. What
	// the store takes may be less; its limit is for header and body together.
	MaxResponseBytes int

	// Wait is how long a duplicate waits for the first request to be answered, before it is told to come
	// back. Zero means not at all.
	Wait time.Duration

	// StoreTimeout is how long a store that is not in this process may take to answer before the request is treated as if it
	// were down: a server that hangs is not to hold all requests until their clients leave. While a duplicate waits it
	// does not count. Zero means 5 seconds; a store has as long as the client if it is negative.
	StoreTimeout time.Duration

	// MaxRun is how long a handler may run, after which its context ends with
	// [context.DeadlineExceeded]. That the client leaves does not end it. Zero means 5 minutes.
	MaxRun time.Duration

	// KeepHeader decides whether a field of a response, or a trailer, is recorded; its name is in
	// canonical form. Fields that are about the connection are never recorded. Nil means
	// [DefaultKeepHeader], which a function may call for the fields that it doesn't know.
	KeepHeader func(name string) bool

	// Redact may change what is recorded of a response. It is given copies: it may change header, and it
	// returns the body. Trailers are in header too, under their names without [http.TrailerPrefix] and after
	// the values of a field of the same name. The first client gets the response as it was.
	Redact func(status int, header http.Header, body []byte) []byte

	// DocsURL is where the API's documentation explains the answers of the middleware. It is an absolute
	// URL without a fragment. Empty means that they don't refer to any.
	DocsURL string

	// ErrorHandler writes the answers of the middleware's own; Retry-After and Link are set already. Nil
	// means that they are written as application/problem+json, by [Problem.ServeHTTP].
	ErrorHandler func(http.ResponseWriter, *http.Request, *Problem)

	// Logger is told what no client can see: that the store fails, and that a claim was lost. Nil means
	// nobody is. Keys are not logged.
	Logger *slog.Logger
}

// New returns a middleware that runs a handler once per key. It guards the methods POST, PUT, PATCH and
// DELETE, and lets others pass. It may be put around any number of handlers, which then share the keys:
// the path is part of what makes two requests the same.
//
// It fails if conf has no Scope, or a value that is negative or malformed.
func New(store idem.Store, conf Config) (func(http.Handler) http.Handler, error) {
	if store == nil {
		return nil, errors.New("httpidem: no store")
	}
	if err := conf.validate(); err != nil {
		return nil, err
	}
	g := &guard{conf: conf.withDefaults()}
	g.asker = tenure.NewAsker(store, g.conf.Wait, g.conf.StoreTimeout)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.serve(next, w, r) })
	}, nil
}

func (c *Config) validate() error {
	if c.Scope == nil {
		return errors.New("httpidem: Config.Scope is missing: a key belongs to somebody")
	}
	if err := httpwire.CheckLimits("httpidem", c.MaxRequestBytes, c.MaxResponseBytes, c.Wait, c.MaxRun); err != nil {
		return err
	}
	if c.Header != "" && !httpwire.IsToken(c.Header) {
		return fmt.Errorf("httpidem: Config.Header is not the name of a header field: %q", c.Header)
	}
	if c.DocsURL != "" && !httpwire.IsDocsURL(c.DocsURL) {
		return fmt.Errorf("httpidem: Config.DocsURL is not an absolute URL without a fragment: %q", c.DocsURL)
	}
	return nil
}

func (c *Config) withDefaults() Config {
	conf := *c
	conf.Header = http.CanonicalHeaderKey(cmp.Or(conf.Header, DefaultHeader))
	conf.MaxRequestBytes = cmp.Or(conf.MaxRequestBytes, 1<<20)
	conf.MaxResponseBytes = cmp.Or(conf.MaxResponseBytes, 1<<20)
	conf.StoreTimeout = cmp.Or(conf.StoreTimeout, 5*time.Second)
	conf.MaxRun = cmp.Or(conf.MaxRun, 5*time.Minute)
	conf.Logger = cmp.Or(conf.Logger, slog.New(slog.DiscardHandler))
	if conf.Policy == nil {
		conf.Policy = DefaultPolicy
	}
	if conf.KeepHeader == nil {
		conf.KeepHeader = DefaultKeepHeader
	}
	return conf
}
