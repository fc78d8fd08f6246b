package httpidem

import "net/http"

// An Action is what becomes of a key when the handler has answered.
type Action uint8

const (
	// Store records the response. Every request that follows with the key gets it.
	Store Action = iota

	// Release frees the key, so that the next request with it runs the handler again. It is for answers
	// after which nothing has happened.
	Release

	// Hold records that nobody knows whether the operation took effect. Requests that follow with the
	// key are answered 409 outcome_unknown, and the handler is not run for them, whatever the store's
	// own policy for a lease that ran out. It ends with the record's TTL, or when an operator who has
	// looked calls [idem.Inspector.Forget].
	Hold
)

// DefaultPolicy stores the answers that repeating cannot change: those below 500, except 401, 403, 408,
// 425 and 429. It releases the key after these and after 5xx.
func DefaultPolicy(status int) Action {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, // the caller may be let in the next time
		http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests: // nothing was tried
		return Release
	}
	if status >= 500 {
		return Release
	}
	return Store
}

// StoreAll stores every answer, a 500 too: a retry learns how the first request ended and nothing else.
// It is for handlers whose failures may come after their effect, and clients that take a new key when
// they want to try again.
func StoreAll(int) Action { return Store }

// HoldAmbiguous is [DefaultPolicy], except that it holds the key after 500, 502 and 504: the effect may
// have taken place behind the server that failed.
func HoldAmbiguous(status int) Action {
	switch status {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		return Hold
	}
	return DefaultPolicy(status)
}
