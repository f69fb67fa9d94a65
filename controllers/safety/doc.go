// SPDX-License-Identifier: Apache-2.0

// Package safety contains the controllers that watch over the other reconcilers. They find
// resources in a cloud that cost money and belong to no machine. They freeze pools that make too
// many machines, and everything that would replace machines while their health is unknown. They
// decide only by complete listings and live reads. In doubt, they ask a person instead of acting.
// You can switch them off without harm to machines. The package may import cloud and api, but never
// bootstrap or a driver.
package safety
