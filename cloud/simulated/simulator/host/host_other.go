// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package host

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
)

// Host is not available on this operating system.
type Host struct{}

var errNoLinux = errors.New("machines with real programs need Linux")

// Open returns an error.
func Open(context.Context, Options) (*Host, error) { return nil, errNoLinux }

// Close does nothing.
func (*Host) Close() {}

// Route returns an error.
func Route(context.Context, string) (func(context.Context) error, error) { return nil, errNoLinux }

// Run returns an error.
func (*Host) Run(context.Context, io.Writer, []string, ...string) error { return errNoLinux }

// Listen returns an error.
func (*Host) Listen(string) (net.Listener, error) { return nil, errNoLinux }

// Dial returns an error.
func (*Host) Dial(context.Context, int32) (net.Conn, error) { return nil, errNoLinux }

// ReadFile returns an error.
func (*Host) ReadFile(string) ([]byte, error) { return nil, errNoLinux }

// ReadDir returns an error.
func (*Host) ReadDir(string) ([]string, error) { return nil, errNoLinux }

// WriteFile returns an error.
func (*Host) WriteFile(string, []byte, fs.FileMode) error { return errNoLinux }
