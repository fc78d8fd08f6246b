package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// The values of flags that know what they allow. Package flag calls String also on the zero value of
// each type, to find out whether a default is worth mentioning.

// bounded is a flag that holds a whole number from 1 to most.
type bounded struct {
	value *int
	most  int
}

func upTo(most int, value *int) bounded { return bounded{value, most} }

func (b bounded) String() string {
	if b.value == nil {
		return ""
	}
	return strconv.Itoa(*b.value)
}

func (b bounded) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > b.most {
		return fmt.Errorf("must be a whole number from 1 to %d", b.most)
	}
	*b.value = n
	return nil
}

// boundedTime is a flag that holds a duration from least to most.
type boundedTime struct {
	value       *time.Duration
	least, most time.Duration
}

func timeWithin(value *time.Duration, least, most time.Duration) boundedTime {
	return boundedTime{value, least, most}
}

func (b boundedTime) String() string {
	if b.value == nil {
		return ""
	}
	return b.value.String()
}

func (b boundedTime) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil || d < b.least || d > b.most {
		return fmt.Errorf("must be a duration from %v to %v, such as 250ms", b.least, b.most)
	}
	*b.value = d
	return nil
}

// address is a flag that holds host:port.
type address string

func (a *address) String() string { return string(*a) }

func (a *address) Set(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = net.LookupPort("tcp", port) // knows names, too
	}
	if err != nil {
		return errors.New("must be host:port with a port from 0 to 65535, such as 127.0.0.1:8080")
	}
	*a = address(s)
	return nil
}
