package httpidem_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/seed-5bb5eb37/idem/httpidem"
)

// A server that is overloaded at first gets the same request until it has answered it.
func ExampleTransport() {
	var keys []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		if len(keys) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	defer server.Close()

	client := &http.Client{Transport: &httpidem.Transport{MinBackoff: time.Millisecond}}
	resp, err := client.Post(server.URL, "application/json", strings.NewReader(`{"amount":1250}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = resp.Body.Close()
	fmt.Println(resp.Status, "after", len(keys), "requests")
	fmt.Println("one key:", keys[0] == keys[1] && keys[1] == keys[2])
	// Output:
	// 201 Created after 3 requests
	// one key: true
}

// A caller that keeps the key with its order can repeat the request after a crash.
func ExampleWithKey() {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler) // the connection is cut
	}))
	defer server.Close()

	client := &http.Client{Transport: &httpidem.Transport{MinBackoff: time.Millisecond}}
	req, err := http.NewRequest(http.MethodPost, server.URL, strings.NewReader(`{"amount":1250}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := client.Do(req.WithContext(httpidem.WithKey(req.Context(), "order-7")))
	if err == nil {
		_ = resp.Body.Close()
	}
	if retry, ok := errors.AsType[*httpidem.RetryError](err); ok {
		fmt.Printf("%s was sent %d times and may have run: %t\n", retry.Key, retry.Attempts, retry.MayHaveRun)
	}
	// Output:
	// order-7 was sent 4 times and may have run: true
}
