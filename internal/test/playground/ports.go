// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// firstPort and endPort lie below the range for outgoing connections (32768 and above on Linux), so
// that a port stays free while the program that listens there restarts.
const firstPort, endPort = 15000, 32000

// loopback is the address of everything that only this computer reaches.
const loopback = "127.0.0.1"

// listen listens on n different ports of an address, from first to before end.
func listen(ip string, n, first, end int) (listeners []net.Listener, err error) {
	for tries := 0; len(listeners) < n && tries < 1000; tries++ {
		if l, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(first+rand.IntN(end-first)))); err == nil {
			listeners = append(listeners, l)
		}
	}
	if len(listeners) < n {
		closeAll(listeners)
		return nil, fmt.Errorf("no %d free ports between %d and %d on %s", n, first, end-1, ip)
	}
	return listeners, nil
}

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		l.Close()
	}
}

// FreePorts returns n different free ports of 127.0.0.1. Another program may still take one of
// them: in that case onFreePorts retries.
func FreePorts(n int) (ports []int, err error) {
	listeners, err := listen(loopback, n, firstPort, endPort)
	if err != nil {
		return nil, err
	}
	defer closeAll(listeners) // all ports stay taken until the last one is found
	for _, l := range listeners {
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// onFreePorts calls run with n free ports. It retries with other ports when the process failed
// because one of them was taken in the meantime.
func onFreePorts(n int, run func(ports []int) (*Process, error)) (*Process, error) {
	for try := 1; ; try++ {
		ports, err := FreePorts(n)
		if err != nil {
			return nil, err
		}
		p, err := run(ports)
		if err == nil || p == nil || try == 3 || !p.portTaken() {
			return p, err
		}
	}
}

// local returns the address of a port on the loopback interface.
func local(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
