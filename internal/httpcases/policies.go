package httpcases

import "github.com/seed-5bb5eb37/idem/httpidem"

// What becomes of a key.
const (
	Stored   = "stored"
	Released = "released"
	Held     = "held"
)

// Policies are what becomes of a key by the status of the answer, under each policy. Nil is the default.
var Policies = map[string]struct {
	Policy func(status int) httpidem.Action
	Want   map[int]string
}{
	"default": {nil, map[int]string{
		200: Stored, 201: Stored, 204: Stored, 302: Stored, 400: Stored, 402: Stored, 404: Stored, 409: Stored, 410: Stored,
		422: Stored, 499: Stored, 401: Released, 403: Released, 408: Released, 425: Released, 429: Released,
		500: Released, 501: Released, 502: Released, 503: Released, 504: Released, 599: Released,
	}},
	"StoreAll": {httpidem.StoreAll, map[int]string{201: Stored, 401: Stored, 429: Stored, 500: Stored, 503: Stored}},
	"HoldAmbiguous": {httpidem.HoldAmbiguous, map[int]string{
		201: Stored, 401: Released, 429: Released, 500: Held, 501: Released, 502: Held, 503: Released, 504: Held,
	}},
}
