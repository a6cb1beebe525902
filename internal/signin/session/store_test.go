// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestSessionWithADirectTokenIsNotReplaced(t *testing.T) {
	begun := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	used := begun.Add(time.Hour)
	all := []corev1.Secret{{Data: map[string][]byte{
		KeyBegun: stamp(begun), KeyEnds: stamp(begun), KeyRevoked: []byte("true"), KeyDirect: stamp(used.Add(directMargin)),
	}}}
	if left := removable(all, begun.Add(replay+time.Second)); len(left) > 0 {
		t.Error("a revoked session is removed before members may forget it, want it to stay")
	}
	if left := removable(all, used.Add(directMargin)); len(left) != 1 {
		t.Errorf("%d sessions may be removed after the last token has ended, want 1", len(left))
	}
}
