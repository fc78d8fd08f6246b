package bench_test

import (
	"testing"
	"time"

	"github.com/gofiber/fiber/v3/middleware/adaptor"
)

// mounted is a service on fiber that net/http serves, by fiber's own adaptor: how one has fiber's middleware in a
// server that stays on net/http.
type mounted struct {
	*netHTTP

	app *fiberApp
}

func startMounted(tb testing.TB, ttl time.Duration) service {
	app := newFiberGuarded(ttl)
	return mounted{&netHTTP{handler: adaptor.FiberApp(app.app), exchange: newExchange(tb)}, app}
}

func (m mounted) runs() int64 { return m.app.runs() }
