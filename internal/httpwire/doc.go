// Package httpwire has what the middlewares for different HTTP servers must agree on, so that one may replay what the
// other has recorded: how a request names its key, what its fingerprint is made of, and how a response is kept.
package httpwire
