package fiberidem_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/gofiber/fiber/v3"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem/fiberidem"
)

func Example() {
	engine, err := idem.New(idem.Config{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = engine.Close() }()
	idempotent, err := fiberidem.New(engine, fasthttpidem.Config{
		Scope: fasthttpidem.ScopeHeader("Authorization"), // a key belongs to a principal
	})
	if err != nil {
		panic(err)
	}
	charges := 0
	app := fiber.New()
	app.Post("/payments", idempotent, func(c fiber.Ctx) error {
		charges++
		return c.Status(http.StatusCreated).SendString(fmt.Sprintf(`{"id":%d}`, charges))
	})
	for range 2 {
		req := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount":1250}`))
		req.Header.Set("Authorization", "Bearer alice")
		req.Header.Set("Idempotency-Key", "order-7")
		resp, err := app.Test(req)
		if err != nil {
			panic(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			panic(err)
		}
		if err := resp.Body.Close(); err != nil {
			panic(err)
		}
		fmt.Printf("%d %s replayed=%q\n", resp.StatusCode, body, resp.Header.Get("Idempotency-Replayed"))
	}
	// Output:
	// 201 {"id":1} replayed=""
	// 201 {"id":1} replayed="true"
}
