/* Runs the test of hook.rs, which ends the program if it fails. */
#include <stdio.h>

void run(void);

int main(void) {
    setbuf(stdout, NULL);
    run();
    puts("page_table_multiarch: no CPU uses a page that a cursor has unmapped");
    return 0;
}
