// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import "context"

// FindUntil runs only the discovery of Serve, until ctx ends.
func FindUntil(ctx context.Context, n *Network) {
	n.begin(ctx)
	n.find(ctx)
}
