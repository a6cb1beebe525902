// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import "strings"

// WithRegistry prepends a registry to an image, unless the image already specifies one. As in container runtimes, the
// part before the first slash is a registry if it contains a dot or a colon, or is "localhost".
func WithRegistry(registry, image string) string {
	host, _, found := strings.Cut(image, "/")
	if registry == "" || image == "" || found && (strings.ContainsAny(host, ".:") || host == "localhost") {
		return image
	}
	return strings.TrimSuffix(registry, "/") + "/" + image
}
