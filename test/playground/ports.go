// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports lie below what kernels give to outgoing connections (32768 on Linux), so that a port stays free while the
// program that listens there restarts.
const firstPort, lastPort = 15000, 32000

// freePorts returns n different ports on 127.0.0.1 that nobody listens on. Another program may still be faster:
// onFreePorts tries again then.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for tries := 0; len(ports) < n && tries < 1000; tries++ {
		port := firstPort + rand.IntN(lastPort-firstPort)
		l, err := net.Listen("tcp", local(port))
		if err != nil {
			continue
		}
		defer l.Close() // all stay taken until the last is found
		ports = append(ports, port)
	}
	if len(ports) < n {
		return nil, fmt.Errorf("no %d free ports between %d and %d on 127.0.0.1", n, firstPort, lastPort)
	}
	return ports, nil
}

// onFreePorts calls run with n free ports, and again with others when the process failed because one was taken meanwhile.
func onFreePorts(n int, run func(ports []int) (*Process, error)) (*Process, error) {
	for try := 1; ; try++ {
		ports, err := freePorts(n)
		if err != nil {
			return nil, err
		}
		p, err := run(ports)
		if err == nil || p == nil || try == 3 || !p.portTaken() {
			return p, err
		}
	}
}

// local is the address of a port on the loopback interface.
func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
