// A program with a known cause of shootdowns, for `cargo xtask soak culprits`: it maps a file for
// each request, and unmaps it afterwards, beside a goroutine that computes on another thread. With
// the argument `changed`, it maps the file once.
package main

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
)

const (
	requests  = 2000
	fileBytes = 64 << 12
)

func openFile(file *os.File) []byte {
	data, err := syscall.Mmap(int(file.Fd()), 0, fileBytes, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	return data
}

//go:noinline
func closeFile(data []byte) {
	if err := syscall.Munmap(data); err != nil {
		panic(err)
	}
}

func sum(data []byte) (total int) {
	for at := 0; at < len(data); at += 4096 {
		total += int(data[at])
	}
	return total
}

func main() {
	file, err := os.CreateTemp("", "culprit")
	if err != nil {
		panic(err)
	}
	defer os.Remove(file.Name())
	if err := file.Truncate(fileBytes); err != nil {
		panic(err)
	}
	var started, stop atomic.Bool
	go func() {
		for started.Store(true); !stop.Load(); {
		}
	}()
	for !started.Load() {
	}
	changed := len(os.Args) == 3 && os.Args[2] == "changed"
	data, total := openFile(file), 0
	for request := 0; request < requests; request++ {
		total += sum(data)
		if !changed {
			closeFile(data)
			data = openFile(file)
		}
	}
	stop.Store(true)
	fmt.Fprintln(os.Stderr, total)
}
