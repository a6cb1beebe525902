#!/bin/sh
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# A stand-in for what installs a version of Kubernetes on a machine. It waits while the test says so, and fails while the test says so. The test fills in what is between at signs.
set -eu
echo "install-$KUBERNETES_VERSION" >>"@SHARED@/$(hostname)-installed"
while test -e @SHARED@/hold; do sleep 0.2; done
if test -e @SHARED@/broken; then echo "no space left for $KUBERNETES_VERSION" >&2; exit 1; fi
echo "$KUBERNETES_VERSION" >/usr/local/kubernetes-version
