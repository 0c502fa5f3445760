// Runs four goroutines that fill maps and drop them, so that the garbage collector is busy.
package main

import (
	"fmt"
	"sync"
)

func main() {
	var wait sync.WaitGroup
	sums := make([]int, 4)
	for worker := range sums {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for round := 0; round < 8; round++ {
				squares := make(map[int]int)
				for i := 0; i < 100000; i++ {
					squares[i] = i * i
				}
				sums[worker] += len(squares)
			}
		}()
	}
	wait.Wait()
	fmt.Println(sums)
}
