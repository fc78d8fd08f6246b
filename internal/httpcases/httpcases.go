// Package httpcases has what the tests of the middlewares for different HTTP servers have in common: the keys and answers
// of the one are those of the other, and so are the stores that fail them.
package httpcases
