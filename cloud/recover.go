// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"golang.org/x/sync/errgroup"
)

// PanicError is the cause of an Unknown error whose call has panicked.
type PanicError struct {
	// Stack is where it has panicked.
	Stack []byte
	value any
}

// Error implements error. It shows no text but that of Go's runtime, because a decoder's may hold
// anything that the cloud has answered.
func (p *PanicError) Error() string {
	if err, ok := p.value.(runtime.Error); ok {
		return err.Error()
	}
	return fmt.Sprintf("panic with a value of type %T", p.value)
}

// Recover calls do, and returns a panic of it as an Unknown error, caused by a *PanicError. An
// answer may hold what neither a driver nor its SDK expects, and one process serves all accounts.
// So every call of a driver passes here, as does every goroutine, by Group.
func Recover(do func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &Error{Code: Unknown, Message: "the driver failed on the cloud's answer", Err: &PanicError{Stack: debug.Stack(), value: value}}
		}
	}()
	return do()
}

// Group runs goroutines. In contrast to errgroup.Group and sync.WaitGroup, it recovers: Wait
// returns the panic of a goroutine as the error of Recover. The zero value is ready for use.
type Group struct{ group errgroup.Group }

// SetLimit sets how many goroutines run at once. It must be called before Go.
func (g *Group) SetLimit(n int) { g.group.SetLimit(n) }

// Go runs do in a goroutine. It waits while as many run as the limit allows.
func (g *Group) Go(do func() error) {
	g.group.Go(func() error { return Recover(do) })
}

// Wait waits until all goroutines have ended, and returns the first error.
func (g *Group) Wait() error { return g.group.Wait() }
