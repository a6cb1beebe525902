// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package wiring

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

func TestCacheThatCannotSyncSaysWhatToDo(t *testing.T) {
	t.Parallel()
	err := notFilled(&corev1.Pod{}, fmt.Errorf("get informer: %w", &meta.NoKindMatchError{}))
	if !strings.Contains(err.Error(), "*v1.Pod") || !strings.Contains(err.Error(), "apply the CRDs") {
		t.Errorf("without the CRD the error is %q, want the advice to apply the CRDs", err)
	}
	if err := notFilled(&corev1.Pod{}, context.DeadlineExceeded); strings.Contains(err.Error(), "CRD") {
		t.Errorf("while the cache is filled the error is %q, want one without the CRDs", err)
	}
}
