// SPDX-License-Identifier: Apache-2.0

// Package bootstrap turns machines into Nodes. It holds the controller of CloudInitConfig, which
// writes each machine's user data and its bootstrap token, and the controller that approves the
// certificates that kubelets ask for. Package render makes the user data, package token the tokens,
// and package csr judges the requests for certificates.
//
// Of ours it imports only api, kubeconfig and naming: it knows no cloud. What it must know of one
// (the provider ID before boot) is handed in as a function; what it reads of a machine are the
// addresses in status.
//
// What lands on a machine can act for that machine alone: one token per machine, which no other use
// has than to ask for a certificate; the controller approves only the certificate of the Node that
// the token was made for; and the token is deleted when the Node has joined.
package bootstrap
