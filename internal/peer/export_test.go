// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import "context"

// FindUntil is what Serve does about discovery.
func FindUntil(ctx context.Context, n *Network) {
	n.begin(ctx)
	n.find(ctx)
}
