// SPDX-License-Identifier: Apache-2.0

// Package bootstrap turns machines into Nodes. It contains the controller of DroverConfig, which
// writes each machine's user data and bootstrap token, and the controller that approves kubelet
// certificates. Package render creates the user data, package token the tokens, and package csr
// judges the certificate requests.
//
// Of Drover's packages, it imports only api, internal, kubeconfig and naming. It does not depend on
// any cloud. The one fact that it needs from a cloud (the provider ID before boot) comes from a
// function. Of a machine it reads the addresses in the status.
//
// The credentials on a machine can act only for that machine. Each machine has its own token, which
// can only request a certificate. The controller approves only the certificate of the Node that the
// token was made for. The token is deleted when the Node has joined.
package bootstrap
